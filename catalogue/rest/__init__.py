"""What all REST views share: errors, request bodies, lists and the API's description."""
