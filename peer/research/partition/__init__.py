"""From one pooled datalist to sites, and within a site to folds: who gets which samples, and whether anything leaks.

An entry is one of a MONAI datalist. Entries of one subject are a group and stay together, at one site and in one fold;
an entry without a subject is a group by itself. The same entries, in whatever order, with the same seed give the same
parts. Nothing here opens an image but ``leakage``, which compares their bytes.
"""
