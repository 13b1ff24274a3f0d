"""The chain of amendments: who signs them, what each changes, and which of two chains a site takes."""
