"""The two sides of the project for Flower; ``flwr run .`` starts them."""

import engram

client = engram.make_client_app(plugin="your_project")
server = engram.make_server_app(plugin="your_project")
