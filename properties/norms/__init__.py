"""Laws that layer norms and RMS norms share; each has an id in both roles."""
