"""Laws that modules of several roles share; each has an id in every role that it names."""
