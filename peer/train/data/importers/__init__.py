"""Datalists made from a hospital's data: a table, BIDS and nnU-Net folders, or a PACS export.

The modules ``table_source``, ``bids_source``, ``nnunet_source`` and ``dicom_source`` gather candidates; ``candidates``
checks them and divides them into splits.
"""
