"""minitvm: a small deep-learning compiler."""
