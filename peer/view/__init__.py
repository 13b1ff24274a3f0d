"""Views for people: dashboard, trackers, checks before a start."""
