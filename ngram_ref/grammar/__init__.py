"""Grammars: descriptions compiled by xgrammar, what it would ignore, its tree walk, and a small matcher to read."""
