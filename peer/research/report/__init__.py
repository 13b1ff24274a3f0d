"""What `mhfl-peer report` makes of a folder of finished runs: tables, pictures, one page; no daemon imports this."""
