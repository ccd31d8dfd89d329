"""The role `attention`: cases, inputs, the subject's edge, bounds, and how all of them are tried and made simple."""
