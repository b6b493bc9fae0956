"""The JSON documents with which commands and the server answer: one function makes each, so that both give the same."""
