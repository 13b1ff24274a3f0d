"""Datalists made of what a hospital has: a table, BIDS and nnU-Net folders, an export of a PACS.

The modules ``table_source``, ``bids_source``, ``nnunet_source`` and ``dicom_source`` gather
candidates; ``candidates`` checks them, and divides them into splits.
"""
