"""Pure decisions: from a read-only view to a small value. No I/O, clock, thread or log may enter."""
