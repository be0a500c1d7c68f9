-- A minute is told once, when no order of it can come any more: a minute after its end, by the orders' own clock.
CREATE TEMPORARY VIEW minutes AS
SELECT product, window.start AS minute, count(*) AS orders, round(sum(total), 2) AS revenue
FROM STREAM cleaned WATERMARK ordered_at DELAY OF INTERVAL 1 MINUTE
GROUP BY window(ordered_at, '1 minute'), product;
