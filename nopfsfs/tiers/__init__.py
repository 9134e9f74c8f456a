"""Where bytes live: shared columns, RAM arena, disk tier, page cache; budgets and integrity."""
