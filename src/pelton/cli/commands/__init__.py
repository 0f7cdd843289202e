"""One file for each command of `pelton`; the table in cli/main.py names them. No command imports another."""
