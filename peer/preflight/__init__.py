"""What `mhfl-peer check` looks at before a site runs; each finding is ok, a warning or a failure, with its remedy."""
