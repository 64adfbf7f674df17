"""Strategies of the platform's own rounds: whom to ask, screening of replies, merging."""
