"""Pages for a browser: the dashboard, its static copy, and the data protection officer's page."""
