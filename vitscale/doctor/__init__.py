"""`vitscale doctor`: what works on this machine, tried with the code that studies use.

`checks.py` lists the checks; each is one function that takes a `Machine` and returns a `Finding`.
`process.py` runs them in a process of their own, so that a check that crashes or hangs is a failed
check. The other modules have the checks themselves, one module per kind.
"""
