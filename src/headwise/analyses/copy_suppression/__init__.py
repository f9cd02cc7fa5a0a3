"""Copy suppression: heads that lower the logit of a token which earlier layers predict because it
stands in the text."""
