"""What a person looks at: dashboard, trackers, checks before a start."""
