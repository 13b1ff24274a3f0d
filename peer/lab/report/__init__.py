"""The report on a folder of finished runs: tables, figures, one page. No daemon imports it."""
