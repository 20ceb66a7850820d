"""Error distribution functions of draws of lr and wd: tables, figures, words."""
