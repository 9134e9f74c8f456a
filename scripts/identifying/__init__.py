"""What `scripts/identify_table.py` is made of: cells, opens, bars, the virtual clock."""
