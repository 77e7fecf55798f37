"""When, not what: supervised loops around passes that can be called by themselves.

loop      one loop: its pace, its errors, its last success
loops     which passes run, and how often
listener  feeds LISTEN into the wake-ups
"""
