"""What a stateful operator will do: keys, aggregates, windows and time, as plain data. No I/O enters here."""
