"""The algorithm: trees, corpus, links and acceptance, in numpy and torch alone.

Read in this order: `tree`, `trie`, `config`, `corpus`, `links`, `walk`, `accept`.
"""
