"""The tuner of the limit of requests, and its rivals, at a shared source in virtual time."""
