"""The command line: what operators and approvers type. May import the app and the client, and nothing beside them."""
