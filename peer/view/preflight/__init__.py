"""The checks of `mhfl-peer check`: each gives findings, which are ok, a warning or a failure with a
remedy.
"""
