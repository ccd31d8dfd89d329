"""The golden ledger: what five documents on attention state, derived exactly. README.md is the authors' guide."""
