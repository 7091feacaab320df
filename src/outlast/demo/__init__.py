"""The agent of `outlast demo`: it prepares a dependency fix and opens one pull request, whatever dies meanwhile.

Everything here is ordinary code over git, HTTP and files; the modules that make it durable are the workflow's, and they
stand above these. May import `outlast.app` and what lies below it.
"""
