"""The ledger neither makes money nor loses it."""

import unittest

from ledger import Posting, UnbalancedError, balance, transfer


class TransferTest(unittest.TestCase):
    """Transfers balance."""

    def test_moves_money(self):
        """What one account loses, the other gains."""
        self.assertEqual(balance(transfer("till", "bank", 1250)), {"till": -1250, "bank": 1250})

    def test_refuses_nothing(self):
        """Zero cents are no transfer."""
        with self.assertRaises(ValueError):
            transfer("till", "bank", 0)

    def test_one_sided_posting_is_noticed(self):
        """A posting without its counterpart raises."""
        with self.assertRaises(UnbalancedError):
            balance([Posting("bank", 1)])


if __name__ == "__main__":
    unittest.main()
