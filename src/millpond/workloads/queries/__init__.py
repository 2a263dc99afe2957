"""The queries by which the papers measure state, and the rest of NEXMark, each written once."""
