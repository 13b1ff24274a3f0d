"""Datalists made from a hospital's data: a table, class folders, arrays, BIDS and nnU-Net folders, or a PACS export.

A module ``*_source`` for each gathers candidates; ``candidates`` checks them and divides them into splits.
"""
