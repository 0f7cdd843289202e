"""Station 8, the command line: `pelton COMMAND`. commands/ holds one file each; nothing below imports this."""
