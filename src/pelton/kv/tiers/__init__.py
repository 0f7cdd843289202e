"""Where blocks go that their pool has no room for: host slots, and files. Names them; sees no key and no value."""
