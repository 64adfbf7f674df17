# Figures of R's survival that tests/tables/survival/test_curves.py compares with:
# Rscript curves.R > curves.json
suppressPackageStartupMessages(library(survival))

show <- function(x) paste0("[", paste(sprintf("%.12g", x), collapse = ", "), "]")
out <- function(name, x, end = ",") cat(sprintf("  \"%s\": %s%s\n", name, show(x), end))

# 12 periods; times are already the ends of periods of 30 days, as tables of the tests have them.
d <- veteran
d$time <- pmin(ceiling(d$time / 30), 12)
d$status[veteran$time > 360] <- 0
fit <- survfit(Surv(time, status) ~ 1, d, conf.type = "log-log")
mean5 <- summary(fit, rmean = 5)$table
ranks <- survdiff(Surv(time, status) ~ celltype, d)
within <- survdiff(Surv(time, status) ~ trt + strata(celltype), d)

# Late entries: those of even rows come a period before they leave, or at 0.
d$entry <- ifelse(seq_len(nrow(d)) %% 2 == 0, pmax(d$time - 3, 0), 0)
late <- survfit(Surv(entry, time, status) ~ 1, d, conf.type = "log-log")
cox <- coxph(Surv(time, status) ~ karno + age, veteran)
cat("{\n")
out("times", d$time)
out("events", d$status)
out("trt", d$trt)
out("cell", as.integer(d$celltype))
out("entry", d$entry)
out("survival", fit$surv)
out("at", fit$time)
out("greenwood", fit$std.err^2)
out("low", fit$lower)
out("high", fit$upper)
out("hazard", fit$cumhaz)
out("hazard_variance", fit$std.chaz^2)
out("rmean", c(mean5["rmean"], mean5["se(rmean)"]))
out("ranks", c(ranks$obs, ranks$exp, ranks$chisq))
out("within", c(rowSums(within$obs), rowSums(within$exp), within$chisq))
out("late_survival", late$surv)
out("late_at", late$time)
out("late_greenwood", late$std.err^2)
out("days", veteran$time)
out("died", veteran$status)
out("risk", predict(cox))
pairs <- concordance(cox, timewt = "n")$count
out("pairs", pairs[c("concordant", "discordant", "tied.x")])
strata <- concordance(Surv(time, status) ~ karno + strata(celltype), veteran, reverse = FALSE)
out("strata", if (is.matrix(strata$count)) colSums(strata$count)[1:3] else strata$count[1:3])
out("karno", veteran$karno, "")
cat("}\n")
