"""Texts as the ids of prompts: whole ones, and what stands around a gap. Nothing here makes a Request."""
