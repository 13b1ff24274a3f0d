"""Which method for a federation, and whether joining is likely to pay, by what the simulator measured on like data."""
