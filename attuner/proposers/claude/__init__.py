"""The proposer `claude`: a language model that reads, asks and proposes one move at a time, by the Messages API."""
