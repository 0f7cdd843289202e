"""What is planned of a step while the one before it runs."""
