-- The same accounts, told by their history alone: what the log says is all there is to know.
CREATE MATERIALIZED VIEW accounts_by_history AS
SELECT account, last.owner, last.city, last.balance
FROM (SELECT account, max_by(struct(owner, city, balance, closed), _offset) AS last FROM changes GROUP BY account)
WHERE NOT last.closed;

CREATE MATERIALIZED VIEW cities AS
SELECT city, count(*) AS accounts, sum(balance) AS balance FROM accounts GROUP BY city;
