"""The laboratory: experiments, their report, public data sets, the demonstration; no site imports it."""
