"""The chain of amendments: its signatures, the changes of each, and the choice between two chains."""
