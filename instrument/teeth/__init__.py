"""The teeth of the laws, measured: a corpus of faults and right variants, judged by every law of their roles."""
