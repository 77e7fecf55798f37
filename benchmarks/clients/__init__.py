"""What each client adds to HTTP; see __main__."""
