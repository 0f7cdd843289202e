"""The runner: what rows hold (token ids, tables, sampling records), and a plan turned into arrays and back."""
