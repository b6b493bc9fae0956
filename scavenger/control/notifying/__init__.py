"""Notifications: requests to webhooks, and the threads that find what is to be told and send it."""
