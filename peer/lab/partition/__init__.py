"""Divide a pooled datalist among sites, split each site into folds, and check for leaks.

An entry is that of a MONAI datalist. Entries of one subject form a group, which stays at one site
and in one fold; an entry without a subject is a group by itself. The same entries with the same
seed give the same parts, in any order of the entries. Only ``leakage`` opens images: it compares
their bytes.
"""
