"""The papers' printed numbers: tables of them, and drawings behind our figures."""
