"""The laws: one short function each, one module for each theme.  `headcheck laws` lists them."""
